"""The types of all requests, answers and events, under one name."""

from ._generated import *  # noqa: F403
from .events import OtherEvent as OtherEvent
from .events import StreamEvent as StreamEvent
from .options import CreateSessionOptions as CreateSessionOptions
from .options import DownloadedFile as DownloadedFile
from .options import EndedSession as EndedSession
from .options import ResumedSession as ResumedSession
from .options import SessionOptions as SessionOptions
from .request import FileContents as FileContents
