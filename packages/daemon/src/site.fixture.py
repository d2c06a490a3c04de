"""What the tests of the proxy talk to in a guest: a site on 3000, an echo on 3001, and nonsense on 3002."""
import base64, hashlib, json, os, socketserver, struct, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def chunked(self, headers=()):
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def do_GET(self):
        if self.path.startswith("/headers"):
            return self.answer(json.dumps([self.path, self.headers.items()]).encode())
        if self.path == "/login":
            cookies = [("Set-Cookie", "a=1; Domain=.localhost; Path=/"), ("Set-Cookie", "b=2")]
            more = [("Location", "/welcome"), ("Strict-Transport-Security", "max-age=1"), ("Connection", "X-Hop"), ("X-Hop", "1")]
            return self.answer(b"", 302, cookies + more)
        if self.path == "/events":
            self.chunked([("Content-Type", "text/event-stream")])
            for number in range(3):
                self.chunk(b"data: %d\n\n" % number)
                time.sleep(0.4)
            return self.chunk(b"")
        if self.path == "/endless":
            self.chunked()
            try:
                while True:
                    self.chunk(b"x" * 65536)
            except OSError:
                open("/tmp/left", "w").close()
            self.close_connection = True
            return
        if self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
            return
        if self.path.startswith("/ws"):
            return self.web_socket()
        self.answer(b"no such page", 404)

    do_HEAD = do_GET

    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers.get("Content-Length", 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                digest.update(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        while left > 0:
            data = self.rfile.read(min(left, 1 << 16))
            digest.update(data)
            left -= len(data)
        self.answer(digest.hexdigest().encode())

    do_PUT = do_DELETE = do_OPTIONS = do_POST

    def web_socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            length = head[1] & 127
            if length == 126:
                length = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length)))
            size = bytes([length]) if length < 126 else b"\x7e" + struct.pack(">H", length)
            self.wfile.write(bytes([head[0]]) + size + data)


class Echo(socketserver.BaseRequestHandler):
    """Says everything back when it has heard all of it."""

    def handle(self):
        heard = b""
        while data := self.request.recv(65536):
            heard += data
        self.request.sendall(hashlib.sha256(heard).hexdigest().encode() + b" " + str(len(heard)).encode())


class Nonsense(socketserver.BaseRequestHandler):
    def handle(self):
        asked = self.request.recv(65536)
        if b"/silent" in asked:
            return
        if b"/twofold" in asked:
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        elif b"/swollen" in asked:
            self.request.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100000 + b"\r\n\r\n")
        elif b"/odd" in asked:
            self.request.sendall(b"HTTP/1.1 042 Odd\r\nContent-Length: 0\r\n\r\n")
        elif b"/upgraded" in asked:
            self.request.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        else:
            self.request.sendall(b"SSH-2.0-nonsense\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


for server in (ThreadingHTTPServer(("127.0.0.1", 3000), Site), Server(("", 3001), Echo), Server(("", 3002), Nonsense)):
    threading.Thread(target=server.serve_forever).start()
open("/tmp/up", "w").close()
