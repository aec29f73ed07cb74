"""The rules of the product as plain values. Imports the standard library only."""
