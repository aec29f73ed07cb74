"""What authors of other event stores need to test them. Install `ads-pipeline[testing]`."""
