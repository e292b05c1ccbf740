"""Files and batches as OpenAI's clients know them, beside the other routes of a server.

In: files of requests that clients upload, and batches of these. Out: files of responses. Lines are asked of the
server's own application, a model's or a front's, while other requests leave room. Begin with `routes`; `files` and
`batches` are what lies in the folder, `runner` what answers.
"""
