"""`octavo serve --replicas N`: several servers of a model, and a front that routes requests to them.

In: requests. Out: the replies of a replica each; where it ends in the middle of one, another goes on with it. Begin
with `front`, then `relay`; `pool` starts replicas and watches them, `routing` chooses one.
"""
