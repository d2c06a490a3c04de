"""The Python kernel of forkd: runs code sent over descriptor 3 in one lasting namespace."""

import ast
import gc
import inspect
import json
import linecache
import os
import random
import signal
import sys
import traceback
import types

CHANNEL = 3
NAME = "<eval-%d>"
# How many evals back a traceback can still quote its source lines.
SOURCES = 1000
RICH = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

running = False
count = 0
loop = None
main = types.ModuleType("__main__")


def receive(size):
    parts = os.read(CHANNEL, size)
    while parts and len(parts) < size:
        more = os.read(CHANNEL, size - len(parts))
        if not more:
            return b""
        parts += more
    return parts


def send(kind, payload=b""):
    message = kind + len(payload).to_bytes(4, "big") + payload
    while message:
        message = message[os.write(CHANNEL, message) :]


def interrupted(signum, frame):
    # Outside of user code there is nothing to interrupt, and the kernel itself must survive.
    if running:
        raise KeyboardInterrupt


def execute(code, namespace):
    value = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        global loop
        if loop is None:
            import asyncio

            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        value = loop.run_until_complete(value)
    return value


def run(source):
    """Runs the statements and returns the value of a trailing expression."""
    global running, count
    count += 1
    name = NAME % count
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    linecache.cache.pop(NAME % (count - SOURCES), None)
    running = True
    try:
        # Most evals are one expression, and on an emulated CPU going through the syntax tree costs milliseconds.
        try:
            code = compile(source, name, "eval", AWAIT)
        except SyntaxError:
            code = None
        if code is not None:
            return execute(code, main.__dict__)
        tree = compile(source, name, "exec", AWAIT | ast.PyCF_ONLY_AST)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            execute(compile(tree, name, "exec", AWAIT), main.__dict__)
        if last is not None:
            return execute(compile(ast.Expression(last.value), name, "eval", AWAIT), main.__dict__)
    finally:
        running = False


def rich(value):
    mime = {}
    if type(value).__module__ == "builtins":
        return mime
    for method, kind in RICH:
        render = getattr(type(value), method, None)
        if render is None:
            continue
        try:
            shown = render(value)
        except Exception:
            continue
        if isinstance(shown, tuple):
            shown = shown[0]
        if isinstance(shown, bytes):
            import base64

            shown = base64.b64encode(shown).decode()
        if shown is not None:
            mime[kind] = shown
    return mime


def describe(error):
    trace = error.__traceback__
    # Only the frames of the evaluated code and below it are the user's business.
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {"name": type(error).__name__, "value": str(error), "traceback": "".join(lines)}


def answer(source):
    global running
    try:
        value = run(source)
        running = True
        if value is not None:
            main.__dict__["_"] = value
            send(b"R", repr(value).encode("utf-8", "replace"))
            mime = rich(value)
            if mime:
                send(b"M", json.dumps(mime).encode())
    except BaseException as error:
        running = False
        send(b"X", json.dumps(describe(error)).encode())
    finally:
        running = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    send(b"D")


def reseed(order):
    os.environ.update(order["env"])
    seed = int(order["seed"], 16)
    random.seed(seed)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([seed >> shift & 0xFFFFFFFF for shift in range(0, 256, 32)])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed & 0xFFFFFFFFFFFFFFFF)
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(order["seed"], 32.0)


def serve():
    signal.signal(signal.SIGINT, interrupted)
    os.set_inheritable(CHANNEL, False)
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [""]
    sys.path[0] = ""
    sys.modules["__main__"] = main
    send(b"K")
    while header := receive(5):
        payload = receive(int.from_bytes(header[1:], "big"))
        kind = header[:1]
        if kind == b"E":
            answer(payload.decode())
        elif kind == b"S":
            reseed(json.loads(payload))
            send(b"D")
        elif kind == b"F":
            gc.collect()
            gc.freeze()
            send(b"D")


serve()
