"""Runs a program on a terminal of its own, types what it is told, and prints what came back.

usage: terminal.fixture.py SCRIPT PROGRAM ARGS...; SCRIPT is JSON: [[wait_for, type], ...], or ["resize", cols, rows].
"""
import fcntl, json, os, pty, select, signal, struct, sys, termios, time

steps = json.loads(sys.argv[1])
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])

output = b""
at = 0


def set_size(cols, rows):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


set_size(90, 30)
deadline = time.time() + 60
while time.time() < deadline:
    while steps:
        if steps[0][0] == "resize":
            set_size(steps[0][1], steps[0][2])
        else:
            found = output.find(steps[0][0].encode(), at)
            if found < 0:
                break
            at = found + len(steps[0][0])
            os.write(fd, steps[0][1].encode())
        steps.pop(0)
    if not select.select([fd], [], [], 0.1)[0]:
        continue
    try:
        piece = os.read(fd, 65536)
    except OSError:
        break
    if not piece:
        break
    output += piece

raw = not termios.tcgetattr(fd)[3] & termios.ICANON
if steps:
    os.kill(pid, signal.SIGKILL)
_, status = os.waitpid(pid, 0)
print(json.dumps({"code": os.waitstatus_to_exitcode(status), "raw": raw, "left": steps, "output": output.decode(errors="replace")}))
