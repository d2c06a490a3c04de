"""Run in a guest: prints a line on what becomes of what each argument asks it to send."""
import socket, struct, sys

GUEST_MAC, GATEWAY_MAC = bytes.fromhex('02666b640002'), bytes.fromhex('02666b640001')


def tcp(address, port):
    with socket.create_connection((address, int(port)), 5) as connection:
        return connection.makefile().read()


def udp(address, port):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(0.3)
        s.sendto(b'question', (address, int(port)))
        return s.recv(1000).decode()


def talk(address, port, count):
    """Says several things from one socket, each after an answer to the one before."""
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        answers = []
        for n in range(int(count)):
            s.sendto(str(n).encode(), (address, int(port)))
            answers.append(s.recv(1000).decode())
        return ', '.join(answers)


def refused(address, port):
    while True:
        try:
            socket.create_connection((address, int(port)), 5).close()
        except ConnectionRefusedError:
            return 'refused'
        except ConnectionResetError:
            # Nobody took it any more before the sockets were closed.
            pass


def echo(address, size):
    """Sends and reads back more than fits into any buffer."""
    import hashlib, threading
    sent, received = hashlib.sha256(), hashlib.sha256()
    with socket.create_connection((address, 7), 5) as connection:
        def send():
            for n in range(int(size)):
                block = bytes([n % 251]) * 65536
                sent.update(block)
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        while chunk := connection.recv(65536):
            received.update(chunk)
        sender.join()
    return 'same' if sent.digest() == received.digest() else 'different'


def checksum(data):
    data += b'\0' * (len(data) % 2)
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(source, destination, port):
    a, b = socket.inet_aton(source), socket.inet_aton(destination)
    segment = struct.pack('!HHIIBBHHH', 40000, port, 1, 0, 5 << 4, 2, 65535, 0, 0)
    sum_ = checksum(a + b + struct.pack('!BBH', 0, 6, len(segment)) + segment)
    segment = segment[:16] + struct.pack('!H', sum_) + segment[18:]
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(segment), 1, 0, 64, 6, 0, a, b)
    return head[:10] + struct.pack('!H', checksum(head)) + head[12:] + segment


def arp(operation, mac, address, target):
    return struct.pack('!HHBBH6s4s6s4s', 1, 0x800, 6, 4, operation, mac, socket.inet_aton(address), bytes(6), socket.inet_aton(target))


def frames():
    """Sends each frame that should get an answer, or should not, and says which did."""
    me, gateway, other = '10.107.0.2', '10.107.0.1', bytes.fromhex('02666b640009')
    ip = 0x0800
    wanted = {
        'a SYN': (GUEST_MAC, ip, syn(me, '203.0.113.7', 81)),
        'an ARP request': (GUEST_MAC, 0x0806, arp(1, GUEST_MAC, me, gateway)),
        'a SYN from another MAC': (other, ip, syn(me, '203.0.113.7', 82)),
        'a SYN from another address': (GUEST_MAC, ip, syn('10.107.0.3', '203.0.113.7', 83)),
        'a SYN from the gateway': (GUEST_MAC, ip, syn(gateway, '203.0.113.7', 84)),
        'a SYN from loopback': (GUEST_MAC, ip, syn('127.0.0.1', gateway, 85)),
        'an ARP request of another': (GUEST_MAC, 0x0806, arp(1, GUEST_MAC, '10.107.0.3', gateway)),
        'an ARP request with another MAC': (GUEST_MAC, 0x0806, arp(1, other, me, gateway)),
        'an ARP answer': (GUEST_MAC, 0x0806, arp(2, GUEST_MAC, me, gateway)),
        'a tagged SYN': (GUEST_MAC, 0x8100, struct.pack('!HH', 5, ip) + syn(me, '203.0.113.7', 86)),
    }
    answered = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        wire.bind(('eth0', 0))
        for name, (mac, kind, data) in wanted.items():
            wire.settimeout(0.001)
            try:
                while True:
                    wire.recv(2000)
            except TimeoutError:
                pass
            wire.settimeout(0.15)
            wire.send(GATEWAY_MAC + mac + struct.pack('!H', kind) + data)
            try:
                # What the guest itself sends is seen too.
                while wire.recv(2000)[6:12] != GATEWAY_MAC:
                    pass
                answered.append(name)
            except TimeoutError:
                pass
    return ', '.join(answered)


for order in sys.argv[1:]:
    name, *arguments = order.split()
    try:
        print(globals()[name](*arguments))
    except OSError as error:
        print(type(error).__name__)
