"""The commands for one machine: `demo` and `dev`."""
