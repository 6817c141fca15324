"""A stand-in for the images that this server does not build yet: between a client and the server, it answers what is
asked of `/v1/images` as if each image were built already, and takes `image` out of a create, so that what a client does
after that is done by the server. Everything else goes through, byte for byte."""

import json
import socket
import threading
import uuid
from urllib.parse import urlsplit

from support import URL

SERVER = urlsplit(URL)


def _image(ident):
    return {
        "id": ident, "kind": "image", "status": "ready", "state": "ready", "name": None, "tags": [], "version": 1,
        "region": "us-east", "createdAt": "2026-01-01T00:00:00.000Z", "readyAt": "2026-01-01T00:00:00.000Z",
        "error": None, "notes": [], "start": None, "env": {}, "digest": "sha256:" + "0" * 64, "storedBytes": 0,
    }


class Images:
    """`with Images() as url:` gives an address to use instead of the server's. `refused` are ids that are no image."""

    def __init__(self):
        self.known = set()

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __exit__(self, *_):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        """One request for each connection: what comes after it is the same exchange, a body or a WebSocket."""
        got = b""
        while b"\r\n\r\n" not in got:
            more = client.recv(65536)
            if not more:
                return client.close()
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        whole = path == "/v1/sandboxes" or path.startswith("/v1/images")
        while whole and len(body) < int(headers.get("content-length", 0)):
            body += client.recv(65536)
        if path.startswith("/v1/images"):
            return self._answer(client, method, path)
        if whole and method == "POST":
            fields = json.loads(body)
            if fields.get("image") in self.known:
                del fields["image"]
            body = json.dumps(fields).encode()
            headers["content-length"] = str(len(body))
        if "upgrade" not in headers:
            headers["connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        server = socket.create_connection((SERVER.hostname, SERVER.port))
        server.sendall(f"{first}\r\n{lines}\r\n".encode("latin-1") + body)
        threading.Thread(target=_pump, args=(client, server), daemon=True).start()
        _pump(server, client)
        client.close()
        server.close()

    def _answer(self, client, method, path):
        ident = path.removeprefix("/v1/images").strip("/").partition("?")[0]
        status, answer = "200 OK", None
        if method == "POST" and not ident:
            self.known.add(ident := str(uuid.uuid4()))
        if ident in self.known:
            answer = _image(ident)
        else:
            status = "404 Not Found"
            answer = {"error": {"code": "image_not_found", "message": f"No image {ident}.", "status": 404,
                                "requestId": "req_stand_in"}}
        body = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}"
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        client.close()


def _pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
