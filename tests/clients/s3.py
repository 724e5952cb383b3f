"""boto3 on the bucket that a registry lies in.

s3.py make ENDPOINT BUCKET          makes the bucket
s3.py read ENDPOINT BUCKET PREFIX   reads the registry there: manifests, files, rows

Credentials come from AWS's own files, by profile, as boto3 finds them.
"""

import json
import sys

import boto3
import pyarrow as pa


def make(s3, bucket):
    s3.create_bucket(Bucket=bucket)


def objects(s3, bucket, prefix):
    found = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            found[entry["Key"]] = entry["Size"]
    return found


def unpack(pack):
    """Returns the parts in a pack: the files of rows, each at the next multiple of 64."""
    length = int.from_bytes(pack[-20:-12], "little")
    index = json.loads(pack[-20 - length : -20])
    parts, at = [], 0
    for table in index["tables"]:
        for part in table["parts"]:
            at = -(-at // 64) * 64
            parts.append(pack[at : at + part["file"]["bytes"]])
            at += part["file"]["bytes"]
    return parts


def read(s3, bucket, prefix):
    found = objects(s3, bucket, prefix + "/")
    manifests = sorted(key for key in found if "/versions/" in key)
    assert manifests, sorted(found)
    versions = rows = in_parts = 0

    def fetch(model, file, kind):
        """Returns the bytes of a file, whose size must be what the manifest says."""
        nonlocal in_parts
        digest = file["blake3"]
        path = f"{prefix}/{model}/files/{digest[:2]}/{digest}.{kind}"
        head = s3.head_object(Bucket=bucket, Key=path)
        assert head["ContentLength"] == file["bytes"] == found[path], (path, head)
        in_parts += "-" in head["ETag"]
        return s3.get_object(Bucket=bucket, Key=path)["Body"].read()

    for key in manifests:
        manifest = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        model = manifest["model"]
        versions += 1
        frame = json.loads(fetch(model, manifest["frame"], "json"))
        for file in (frame["graph"], manifest["dense"], manifest["parity"]):
            fetch(model, file, file["kind"])
        if "pack" in manifest:
            parts = unpack(fetch(model, manifest["pack"], "pack"))
        else:
            layer = manifest["layer"]
            fetch(model, layer["directory"], "arrow")
            files = [part["file"] for table in layer["tables"] for part in table["parts"]]
            parts = [fetch(model, file, "arrow") for file in files]
        for part in parts:
            table = pa.ipc.open_file(pa.BufferReader(part)).read_all()
            assert {"key", "weights", "count"} <= set(table.column_names), table.column_names
            keys = table.column("key").to_pylist()
            assert keys == sorted(keys), "rows are in the order of their keys"
            rows += table.num_rows
    # Where the answer to the beginning of an upload was lost another was begun: a lifecycle rule removes those.
    unfinished = len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    print(json.dumps({"versions": versions, "rows": rows, "in_parts": in_parts, "unfinished": unfinished}))


def main():
    what, endpoint, bucket, *rest = sys.argv[1:]
    s3 = boto3.client("s3", endpoint_url=endpoint)
    {"make": make, "read": read}[what](s3, bucket, *rest)


main()
