"""The ledger database: which partitions are safe to read, and the full history behind each state.

`ledger.LedgerReader` reads it, `ledger.Ledger` also writes to it, and `database` opens it. Both are one object for
each subject, over one engine. Functions take the object that they use.
"""
