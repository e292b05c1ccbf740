"""How fast a server answers: workloads over HTTP against any URL that speaks OpenAI's protocol."""
