"""The rules of the product as plain values. Imports only the standard library."""
