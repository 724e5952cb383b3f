"""A topic of Kafka through the client kafka-python, which shares no code with librdkafka.

kafka_peer.py write BROKER TOPIC PARTITIONS FROM TO   writes the numbered messages FROM to TO - 1
kafka_peer.py read BROKER TOPIC PARTITIONS            prints all messages, one JSON list a line
"""

import json
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition


def text(number):
    """Returns the text of a message: its length is between 40 and 640 bytes."""
    pad = "x" * (number * 7919 % 580)
    return json.dumps({"number": number, "pad": pad, "time": 1_700_000_000_000 + number})


def write(broker, topic, partitions, begin, end):
    # Several clients, so that batches with each kind of compression lie side by side.
    kinds = [None, "gzip"]
    clients = [KafkaProducer(bootstrap_servers=broker, compression_type=kind) for kind in kinds]
    for number in range(begin, end):
        client = clients[number // 1000 % len(clients)]
        client.send(topic, value=text(number).encode(), partition=number % partitions)
        if number % 1000 == 999:
            # The next client must not overtake this one.
            client.flush()
    for client in clients:
        client.flush()
        client.close()


def read(broker, topic, partitions):
    client = KafkaConsumer(bootstrap_servers=broker)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    client.assign(places)
    client.seek_to_beginning(*places)
    left = int(sys.stdin.readline())
    while left > 0:
        for records in client.poll(timeout_ms=1000).values():
            for record in records:
                print(json.dumps([record.partition, record.offset, record.value.decode()]))
                left -= 1
    client.close()


command, broker, topic, *numbers = sys.argv[1:]
{"write": write, "read": read}[command](broker, topic, *map(int, numbers))
