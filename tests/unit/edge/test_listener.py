"""The sockets that HTTP is served on."""

import socket

from pentimento.rpc import RpcServerSettings
from services.edge.http.listener import HttpListener
from services.edge.settings import HttpSettings


def test_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    listener = HttpListener(None, HttpSettings(http_listen="127.0.0.1:0"), RpcServerSettings())
    listener.bind()
    listening = listener._socket
    assert listening is not None
    with listening, socket.create_connection(listening.getsockname()):
        listening.setblocking(True)
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
