"""The server's side: every answer is mixed into the model at once, and its node gets the new one.

Messages are pushed and pulled by hand: Flower's own `send_and_receive` looks for answers every three seconds.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes: list[int] = []
    while len(nodes) < int(config["workers"]):
        nodes = list(grid.get_node_ids())
        time.sleep(0.1)
    model = [np.ones(int(config["bytes"]) // 4, np.float32)]

    def task(node: int) -> Message:
        content = RecordDict({"model": ArrayRecord(model)})
        return Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)

    waiting = set(grid.push_messages([task(node) for node in nodes]))
    out, arrivals, since = Path(str(config["out"])), list[float](), time.monotonic()
    while time.monotonic() - since < float(config["seconds"]):
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_error():
                raise RuntimeError(str(reply.error))
            theirs = reply.content["model"].to_numpy_ndarrays()
            model = [0.4 * a + 0.6 * b for a, b in zip(model, theirs, strict=True)]
            arrivals.append(time.monotonic())
            out.write_text(json.dumps(arrivals))
            waiting |= set(grid.push_messages([task(reply.metadata.src_node_id)]))
        time.sleep(0.005)
    out.with_suffix(".done").touch()
