"""Remembers, in one database, what is safe to read and everything that led to it.

`LedgerReader` in `reader` is for those who only ask; `Ledger` in `writer` also records. Open them with `database`.
"""
