"""HTTP itself: connections and bodies within limits, who may ask, errors, server-sent events, the page.

Begin with `connection`.
"""
