"""What the keys of the Servers screen do: each asks where something is stopped, runs off the event loop, says the end.

Routes to `serving`; decides nothing about servers itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from textual import work

from vq_console.core.errors import VqError
from vq_console.core.text import seconds_text, strip_control
from vq_console.serving.model import LIVE
from vq_console.ui import details
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.screens.launching import launch_here, trusted
from vq_console.ui.widgets.dialogs import Choose, Confirm


class ServerActions(ConsoleScreen):
    """Actions on the selected server and on the machine."""

    snapshot = Snapshot()

    def selected(self) -> ServerSnapshot | None:
        """The server that the keys act on."""
        raise NotImplementedError

    def action_open_log(self) -> None:
        """Show the log of the selected server, at its problem where it has one."""
        server = self.selected()
        if server is not None:
            self.console_app.selected_server = server.record.name
            self.console_app.log_path = server.record.log
            self.console_app.action_show("logs")

    def action_compare(self) -> None:
        """Take the selected server as arm of a comparison."""
        server = self.selected()
        self.console_app.compare_arm = f"server:{server.record.name}" if server else None
        self.console_app.action_show("ab")

    def action_new_profile(self) -> None:
        """Go to the profiles and ask for a model at once."""
        from vq_console.ui.screens.profiles import ProfilesScreen

        self.console_app.action_show("profiles")
        self.app.call_later(
            lambda: self.app.screen.action_new() if isinstance(self.app.screen, ProfilesScreen) else None
        )

    @work(exit_on_error=False)
    async def action_launch(self) -> None:
        """Choose a profile and start it."""
        from vq_console.profiles.store import list_profiles, load_profile

        listed = [entry for entry in await asyncio.to_thread(list_profiles) if entry.profile is not None]
        if not listed:
            self.notify("No profile yet: n makes one.", severity="warning")
            return
        options = [(entry.name, entry.profile.description if entry.profile else "") for entry in listed]
        name = await self.app.push_screen_wait(Choose("Launch which profile?", options))
        if not name:
            return
        try:
            profile = await asyncio.to_thread(load_profile, name)
        except VqError as error:
            self.notify(str(error), severity="error", timeout=12, markup=False)
            return
        if await trusted(self.app, profile):
            self._act(f"launching {name}", lambda: launch_here(profile, simulated=self.console_app.simulated))

    @work(exit_on_error=False)
    async def action_stop(self) -> None:
        """Stop the selected server after a question."""
        server = self.selected()
        if server is None or server.record.state not in LIVE:
            self.notify("Nothing to stop here.")
            return
        if server.record.attached:
            self.notify("This server was not started here, so it is not stopped here.", severity="warning")
            return
        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Stop {name}?", "Its requests end; its memory comes back.")):
            from vq_console.serving.control import stop_server

            self._act(f"stopping {name}", lambda: f"{stop_server(name).name} stopped")

    @work(exit_on_error=False)
    async def action_restart(self) -> None:
        """Restart the selected server with its profile as it is now."""
        server = self.selected()
        if server is None or server.record.attached:
            self.notify("Nothing to restart here.")
            return
        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Restart {name}?", "It is stopped first when it runs.")):
            from vq_console.serving.control import restart_server

            self._act(f"restarting {name}", lambda: f"{restart_server(name).name} is starting")

    @work(exit_on_error=False)
    async def action_patch(self) -> None:
        """Apply a fix of the selected server, or of the worst one where the selected has none, and start it again."""
        server = next((s for s in (self.selected(), *self.snapshot.servers) if s is not None and patches(s)), None)
        if server is None:
            self.notify("No fix here that can be applied by itself.")
            return
        name, fixes = server.record.name, patches(server)
        number = fixes[0][0]
        if len(fixes) > 1:
            options = [(str(index), text) for index, text in fixes]
            chosen = await self.app.push_screen_wait(Choose(f"Which fix for {name}?", options))
            if not chosen:
                return
            number = int(chosen)
        text = dict(fixes)[number]
        if await self.app.push_screen_wait(Confirm(f"Change the profile of {name} and start it again?", text)):
            from vq_console.serving.fix import apply_fix, choose_fix

            self._act(
                f"fixing {name}", lambda: f"{apply_fix(choose_fix(name, number))[1].name} is starting with the fix"
            )

    @work(exit_on_error=False)
    async def action_forget(self) -> None:
        """Remove an ended server from the list."""
        server = self.selected()
        if server is None or (server.record.state in LIVE and not server.record.attached):
            self.notify("Only ended or attached servers can be forgotten.")
            return
        from vq_console.serving.registry import forget_server

        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Forget {name}?", "Its log and record here are removed.")):
            self._act(f"forgetting {name}", lambda: f"{forget_server(name).name} forgotten")

    @work(exit_on_error=False)
    async def action_attach(self) -> None:
        """Watch a server that was started elsewhere: one found on this machine, a container, or any URL."""
        from vq_console.serving.attach import attach_container, attach_pid, attach_url, discover

        known = frozenset(s.record.identity.pid for s in self.snapshot.servers if s.record.identity)
        found = await asyncio.to_thread(discover, known)
        options = [
            (f"container {item.container}" if item.container else f"pid {item.pid}",
             f"port {item.port or '–'}  {item.command[:60]}")
            for item in found
        ]  # fmt: skip
        hint = "http://host:8000, or container NAME; Enter attaches"
        chosen = await self.app.push_screen_wait(Choose("Attach which server?", options, free=True, placeholder=hint))
        if not chosen:
            return
        kind, _, which = chosen.strip().partition(" ")
        if kind == "container" and which:
            self._act(f"attaching {chosen}", lambda: f"{attach_container(which.strip()).name} attached")
        elif kind == "pid" and which.strip().isdigit():
            self._act(f"attaching {chosen}", lambda: f"{attach_pid(int(which)).name} attached")
        else:
            self._act(f"attaching {chosen}", lambda: f"{attach_url(chosen).name} attached")

    @work(exit_on_error=False)
    async def action_orphans(self) -> None:
        """Look at what dead servers left behind, and remove one after a question."""
        from vq_console.serving.orphans import describe, find_orphans, gpu_strangers, reap

        orphans, strangers = await asyncio.to_thread(lambda: (find_orphans(), gpu_strangers()))
        everything = (*orphans, *strangers)
        if not everything:
            self.notify("Nothing is left over from dead servers.")
            return
        options = []
        for number, orphan in enumerate(everything, start=1):
            facts = [
                orphan.user or "",
                f"for {seconds_text(orphan.age_s)}" if orphan.age_s is not None else "",
                f"{orphan.memory_mib / 1024:.1f} GiB" if orphan.memory_mib else "",
                f"GPU {','.join(map(str, orphan.gpus))}" if orphan.gpus else "",
            ]
            words = ", ".join(fact for fact in facts if fact)
            options.append((f"{number} {orphan.name}", strip_control(f"{words}  {orphan.why}")))
        chosen = await self.app.push_screen_wait(Choose("Left behind by dead servers", options))
        if not chosen:
            return
        orphan = everything[int(chosen.partition(" ")[0]) - 1]
        if not orphan.touchable:
            self.notify("Only shown: it is not this user's, or it belongs to something that lives.", severity="warning")
        elif await self.app.push_screen_wait(Confirm(f"Remove {orphan.name}?", describe(orphan))):
            self._act(f"removing {orphan.name}", lambda: f"{orphan.name}: {reap(orphan)}")

    def action_tour(self) -> None:
        """Run the simulated tour in this terminal."""
        self.console_app.action_tour()

    @work(exit_on_error=False)
    async def action_engine(self) -> None:
        """Make a vLLM engine for this machine, with its progress on the screen."""
        from vq_console.ui.widgets.job import JobScreen

        kind = "cuda" if self.snapshot.gpus else "cpu"
        detail = "It gets an environment of its own; some GB are downloaded. It can be cancelled."
        if await self.app.push_screen_wait(Confirm(f"Make a vLLM engine ({kind})?", detail)):
            argv = (sys.executable, "-m", "vq_console", "engines", "install", kind)
            code = await self.app.push_screen_wait(JobScreen(f"engines install {kind}", argv))
            if code == 0:
                self.notify("The engine is there: l launches a profile on it.")
            self.engine_made()

    def engine_made(self) -> None:
        """An engine may have appeared."""

    @work(group="actions", exit_on_error=False)
    async def _act(self, what: str, do: Callable[[], str]) -> None:
        """Run something that may take seconds in a thread; errors become a notification."""
        self.notify(f"{what} …", markup=False)
        try:
            said = await asyncio.to_thread(do)
        except (VqError, OSError) as error:
            self.app.notify(str(error), title=f"{what}: no", severity="error", timeout=15, markup=False)
        else:
            self.app.notify(said, markup=False)
        self.console_app.hub.refresh()


def patches(server: ServerSnapshot) -> list[tuple[int, str]]:
    """(number from 1, text) of the diagnosis's fixes that can be applied."""
    fixes = (details.problem_of(server) or {}).get("fixes") or ()
    return [(number, str(fix["text"])) for number, fix in enumerate(fixes, start=1) if fix.get("patch")]
