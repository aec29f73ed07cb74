"""The `state` commands: list partitions and explain one, and the actions that change them, whose log `audit` lists."""
