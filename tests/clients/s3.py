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


def read(s3, bucket, prefix):
    found = objects(s3, bucket, prefix + "/")
    manifests = sorted(key for key in found if "/versions/" in key)
    assert manifests, sorted(found)
    versions = rows = in_parts = 0
    for key in manifests:
        manifest = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        versions += 1
        layer = manifest["layer"]
        parts = [part for table in layer["tables"] for part in table["parts"]]
        names = [(part["file"], "arrow") for part in parts] + [(layer["directory"], "arrow")]
        for name in ("graph", "dense", "parity"):
            names.append((manifest[name], manifest[name]["kind"]))
        for file, kind in names:
            digest = file["blake3"]
            path = f"{prefix}/{manifest['model']}/files/{digest[:2]}/{digest}.{kind}"
            head = s3.head_object(Bucket=bucket, Key=path)
            assert head["ContentLength"] == file["bytes"] == found[path], (path, head)
            in_parts += "-" in head["ETag"]
        for part in parts:
            digest = part["file"]["blake3"]
            path = f"{prefix}/{manifest['model']}/files/{digest[:2]}/{digest}.arrow"
            body = s3.get_object(Bucket=bucket, Key=path)["Body"].read()
            table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
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
