"""What people and programs talk to from outside a chat: the command line, the HTTP server, the console."""
