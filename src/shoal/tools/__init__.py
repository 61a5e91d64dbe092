"""What a model may call: the registry and the one executor that every call goes through."""
