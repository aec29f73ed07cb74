"""The command line: what it shows, what it says when something is wrong, and the codes it ends with."""
