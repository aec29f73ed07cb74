"""A server on loopback that answers the real client like Google Ads, for the demo and the tests."""
