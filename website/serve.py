"""Serves the built site to the browsers of this computer."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from .build import SITE


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


def server(port: int) -> ThreadingHTTPServer:
    """A server at `port`, or at any free one if that is taken."""
    handler = partial(Quiet, directory=str(SITE))
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)


def serve(port: int) -> None:
    """Serve until Ctrl-C, and print the address."""
    with server(port) as running:
        print(f"http://127.0.0.1:{running.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print()


def in_background() -> ThreadingHTTPServer:
    """A running server at a free port; `shutdown` ends it."""
    running = server(0)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    return running
