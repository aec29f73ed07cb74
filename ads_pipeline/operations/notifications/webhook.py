"""Sends a message to the webhook of the deployment. The URL is a secret: no result, error or log contains it.

Each call is made by a process of its own, `webhook_call`. A server that answers a byte now and then, or
a name server that does not answer, outlasts every timeout of a socket. A process can be ended at any time, so one
limit holds for the whole call, and no thread of the caller waits longer.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Final

CALL_SECONDS: Final = 20.0  # of one call: look up the name, connect, send, and read the status
START_SECONDS: Final = 20.0  # of the process that makes the call. Dagster gives a tick 60 s
CALL: Final = "ads_pipeline.operations.notifications.webhook_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The address that messages go to."""

    url: str = field(repr=False)
    seconds: float = CALL_SECONDS

    def send(self, body: str) -> str:
        """Send one POST and return the problem, or an empty text when the server took the message.

        The problem has neither the URL nor words of the server. The same body has the same idempotency key, so a
        server may recognize a repetition.

        The message is taken only when the server answers with 2xx. A redirect is not followed, because the message
        would go to an address that nobody configured. The call ends within `seconds` and the start of a process.
        """
        request = json.dumps({"url": self.url, "body": body, "seconds": self.seconds})
        try:
            call = subprocess.run(  # noqa: S603 - no shell, and constant; the URL is no argument, which others could read
                [sys.executable, "-m", CALL],
                input=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.seconds + START_SECONDS,
                text=True,
                env=os.environ,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"did not answer within {self.seconds:g} s"
        except OSError as error:
            return f"could not be called: {error.strerror}"
        if call.returncode:
            return f"could not be called: its process ended with code {call.returncode}"
        return call.stdout
