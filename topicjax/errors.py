"""The one exception that is the user's to mend."""


class UserError(ValueError):
    """A mistake of the user, in one sentence: what is wrong, and what is allowed.

    Raised where values enter: settings, sweep files, the command line, run folders.  Any other exception that
    reaches the command line is a defect of topicjax and is shown with its traceback.
    """
