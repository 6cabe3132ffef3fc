"""Read a process's profiles again after their files change; checked once a second at most, when they are used."""

from collections.abc import Sequence
from pathlib import Path

from pentimento.profiles.catalogue import ProfileSet, read_profiles
from pentimento.profiles.document import Profile
from pentimento.rpc.watched_file import KeptReading

KEEPS_EARLIER = "changed profiles are not used: the earlier ones stay in force"


class FollowedProfiles(ProfileSet):
    """Hold the present profiles of files and folders. New files of a folder are used; a file that becomes wrong changes
    nothing and is logged. Raises InvalidArgument naming a file that is wrong at first."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._reading = KeptReading(paths, lambda: read_profiles(paths).profiles, KEEPS_EARLIER)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Return the profiles: the same objects until a file changes."""
        return self._reading.current()
