"""Turns Google Ads reports into a warehouse people can trust."""
