"""`octavo serve MODEL MODEL ...`: several models behind one address, each loaded when it is asked for.

In: requests that name a model. Out: the replies of its server, a process of its own as a replica is, of which the front
keeps as many as memory is said to hold. Begin with `front`, then `models`; `catalog` is what there is to serve.
"""
