"""The parts that commands share: options, parsing, output, exit codes."""
