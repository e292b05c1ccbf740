"""The server: HTTP in front, an engine in a process of its own behind a socket.

`octavo serve` runs it. `app.make_app` gives the ASGI application for another program to run.

    request ---> routes ---> GenerationRequest ---> RequestHandle ---> EngineClient ===> worker: EngineLoop, EngineCore
    response <-- Renderer <--- CompletionOutputs <--- EngineOutputs <=========== StepOutputs, a message a step
"""
