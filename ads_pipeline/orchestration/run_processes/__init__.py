"""How runs get their processes: from a process that has loaded everything before, where there is one."""
