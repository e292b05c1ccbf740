"""`octavo run`: a prompt and its reply, or a conversation. Begin with `command`."""
