"""A WebSocket written out: what a client in another language does, and what no good client would do."""

import base64
import json
import os
import socket
from urllib.parse import urlsplit

from support import KEY, URL


class Refused(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class Socket:
    def __init__(self, path, key=KEY):
        url = urlsplit(URL)
        self.socket = socket.create_connection((url.hostname, url.port), timeout=60)
        sent = [f"GET {path} HTTP/1.1", f"Host: {url.netloc}", "Upgrade: websocket", "Connection: Upgrade",
                "Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)).decode(), "Sec-WebSocket-Version: 13"]
        if key:
            sent.append("Authorization: Bearer " + key)
        self.socket.sendall("\r\n".join(sent).encode() + b"\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            assert byte, head
            head += byte
        status = int(head.split()[1])
        if status != 101:
            self.socket.close()
            raise Refused(status)
        assert b"x-request-id:" in head.lower(), head

    def take(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(min(65536, count - len(data)))
            if not piece:
                raise ConnectionError("cut")
            data += piece
        return data

    def frame(self):
        """(1 text, 2 binary, 8 close) and its bytes; never masked, never in fragments."""
        while True:
            first, second = self.take(2)
            assert first & 0x80 and not first & 0x70 and not second & 0x80, (first, second)
            length = second & 0x7F
            if length > 125:
                length = int.from_bytes(self.take(2 if length == 126 else 8), "big")
            data = self.take(length)
            if first & 0xF not in (9, 10):
                return first & 0xF, data

    def text(self):
        kind, data = self.frame()
        while kind == 2:
            kind, data = self.frame()
        assert kind == 1, (kind, data)
        return json.loads(data)

    def closed(self):
        """Reads up to the close; its code."""
        while True:
            kind, data = self.frame()
            if kind == 8:
                self.write(8, data)
                return int.from_bytes(data[:2], "big")

    def write(self, kind, data):
        mask = os.urandom(4)
        length = len(data)
        head = bytes([0x80 | kind])
        if length < 126:
            head += bytes([0x80 | length])
        else:
            head += bytes([0x80 | (126 if length < 65536 else 127)]) + length.to_bytes(2 if length < 65536 else 8, "big")
        key = (mask * (length // 4 + 1))[:length]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")
        self.socket.sendall(head + mask + masked)

    def send(self, data):
        self.write(1 if isinstance(data, str) else 2, data.encode() if isinstance(data, str) else data)

    def close(self):
        self.write(8, (1000).to_bytes(2, "big"))
        self.socket.close()

    def cut(self):
        self.socket.close()
