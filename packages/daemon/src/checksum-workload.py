"""
Writes memory and files as fast as it can, in two processes, so that every page and every byte of a file follows from two
counters. On SIGUSR1 each looks at all it has written, reports what does not agree, and goes on.
"""
import json, mmap, os, signal, struct, zlib

PAGE, PAGES = 4096, 1024
RECORD = struct.Struct("<QQI")  # number, the number the memory writer was at, checksum of both
LOG_BYTES = RECORD.size << 12
FOLDER, STATUS = "/root/work", "/dev/shm"
shared = mmap.mmap(-1, PAGE)  # the memory writer's counter, seen by the file writer


def page_of(number):
    body = struct.pack("<Q", number) * 511
    return body + struct.pack("<Q", zlib.crc32(body))


class Memory:
    def __init__(self):
        self.pages = mmap.mmap(-1, PAGE * PAGES)
        self.number = 0

    def step(self):
        number = self.number + 1
        at = number % PAGES * PAGE
        self.pages[at : at + PAGE] = page_of(number)
        self.number = number
        shared[:8] = struct.pack("<Q", number)

    def check(self):
        for number in range(max(1, self.number - PAGES + 1), self.number + 1):
            at = number % PAGES * PAGE
            if self.pages[at : at + PAGE] != page_of(number):
                yield f"page {number % PAGES} is not of number {number}"

    def status(self):
        return {"number": self.number}


class Files:
    def __init__(self):
        os.makedirs(FOLDER, exist_ok=True)
        self.number = self.synced = self.noted = self.first = 0
        self.rotate()

    def rotate(self):
        if self.number:
            os.fsync(self.log.fileno())
            self.log.close()
            os.replace(f"{FOLDER}/log", f"{FOLDER}/log.old")
        self.log = open(f"{FOLDER}/log", "wb", buffering=0)
        self.before, self.checksum_before = self.first, getattr(self, "checksum", 0)
        self.first, self.checksum = self.number + 1, 0

    def step(self):
        seen = struct.unpack("<Q", shared[:8])[0]
        number = self.number + 1
        head = struct.pack("<QQ", number, seen)
        record = head + struct.pack("<I", zlib.crc32(head))
        self.log.write(record)
        self.checksum = zlib.crc32(record, self.checksum)
        self.number = number
        if number % 64 == 0:
            os.fsync(self.log.fileno())
            self.synced = number
        if number % 100 == 0:
            with open(f"{FOLDER}/note.new", "w") as note:
                note.write(str(number))
            os.replace(f"{FOLDER}/note.new", f"{FOLDER}/note")
            self.noted = number
        if self.log.tell() >= LOG_BYTES:
            self.rotate()

    def check(self):
        # From the disk, not from the memory it passed through.
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as drop:
            drop.write("3")
        current = open(f"{FOLDER}/log", "rb").read()
        if zlib.crc32(current) != self.checksum:
            yield f"log from {self.first} to {self.number}: wrong checksum"
        if len(current) != (self.number - self.first + 1) * RECORD.size:
            yield f"log from {self.first} to {self.number}: {len(current)} bytes"
        if self.before and zlib.crc32(open(f"{FOLDER}/log.old", "rb").read()) != self.checksum_before:
            yield f"old log from {self.before}: wrong checksum"
        if self.noted and open(f"{FOLDER}/note").read() != str(self.noted):
            yield f"the note is not {self.noted}"
        now, last = struct.unpack("<Q", shared[:8])[0], 0
        for number, seen, _ in RECORD.iter_unpack(current):
            if not last <= seen <= now:
                yield f"record {number} has seen {seen}, after {last} and before {now}"
            last = seen

    def status(self):
        return {"number": self.number, "synced": self.synced}


def work(name, what):
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
    put(f"{name}.pid", os.getpid())
    while True:
        for _ in range(20):
            what.step()
        put(f"{name}.status", what.status())
        if asked:
            asked.clear()
            put(f"{name}.report", {"wrong": list(what.check())[:5], **what.status()})


def put(name, value):
    with open(f"{STATUS}/{name}.new", "w") as file:
        json.dump(value, file)
    os.replace(f"{STATUS}/{name}.new", f"{STATUS}/{name}")


# Those who ask get their turn at once.
os.nice(15)
if os.fork() == 0:
    work("memory", Memory())
work("files", Files())
