"""Regular expressions that users and files give."""

from __future__ import annotations

import re
import warnings


def compiled(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The expression in `text`. Raises re.error for what is none, for too large a count, and for groups too deep.

    Nothing is said of sets such as [[a]], which later releases of Python may read otherwise.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text, flags)
    except OverflowError as error:
        raise re.error(str(error)) from None
    except RecursionError:
        raise re.error("groups are nested too deep") from None
