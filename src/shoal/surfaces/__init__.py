"""Interfaces outside of chats: the command line, the HTTP server and the web console."""
