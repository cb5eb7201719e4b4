"""The processes of a CPU run: a private Ray, and actors that can be watched and ended."""
