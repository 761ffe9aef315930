"""The client's side: the message as it came."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
