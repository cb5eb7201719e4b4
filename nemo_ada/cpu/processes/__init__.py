"""The processes of an embedded run: a private Ray, and actors that can be watched and ended."""
