//! Asking a server: bodies of requests made from raw rows, and one POST at a time.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues};

/// The body of an inference request of the Open Inference Protocol v2.
pub(crate) fn infer_body(rows: usize, columns: &RawColumns<'_>, outputs: &[&str]) -> Vec<u8> {
    let mut inputs = Vec::with_capacity(columns.len());
    for (name, column) in columns {
        let values = values_of(column);
        inputs.push(json!({
            "name": name, "shape": [values.len()], "datatype": datatype(column), "data": values,
        }));
        if let Some(lengths) = &column.lengths {
            let name = format!("{name}__lengths");
            inputs.push(json!({
                "name": name, "shape": [rows], "datatype": "INT64", "data": lengths,
            }));
        }
    }
    let outputs: Vec<Value> = outputs.iter().map(|name| json!({ "name": name })).collect();
    json!({ "inputs": inputs, "outputs": outputs }).to_string().into_bytes()
}

/// The body of a TF-Serving predict request, by rows.
pub(crate) fn instances_body(columns: &RawColumns<'_>, rows: usize) -> Vec<u8> {
    json!({ "instances": instances(columns, rows) }).to_string().into_bytes()
}

/// Rows as objects.
pub(crate) fn instances(columns: &RawColumns<'_>, rows: usize) -> Vec<Value> {
    let mut instances = vec![Map::new(); rows];
    for (name, column) in columns {
        let mut values = values_of(column).into_iter();
        for (row, instance) in instances.iter_mut().enumerate() {
            let value = match &column.lengths {
                None => values.next().unwrap_or(Value::Null),
                Some(lengths) => values.by_ref().take(lengths[row]).collect(),
            };
            instance.insert(name.to_string(), value);
        }
    }
    instances.into_iter().map(Value::Object).collect()
}

/// Posts JSON and returns the status and the body of the answer.
pub(crate) fn post(url: &str, body: &[u8]) -> Result<(u16, Bytes)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(send(url, Bytes::copy_from_slice(body)))
}

async fn send(url: &str, body: Bytes) -> Result<(u16, Bytes)> {
    let Some((host, path)) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/'))
    else {
        bail!("a server's URL is http://HOST:PORT/PATH: {url}");
    };
    let stream = tokio::net::TcpStream::connect(host).await;
    let stream = stream.with_context(|| format!("cannot connect to {host}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("/{path}"))
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let answer =
        sender.send_request(request).await.with_context(|| format!("no answer of {url}"))?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((status, body))
}

/// What the values of a column are in the protocol.
fn datatype(column: &RawColumn<'_>) -> &'static str {
    match &column.values {
        RawValues::Ints(_) => "INT64",
        RawValues::Uints(_) => "UINT64",
        RawValues::Floats(_) => "FP64",
        RawValues::Any(values) => {
            let kind = |value: &RawValue<'_>| match value {
                RawValue::Missing => None,
                RawValue::Int(_) => Some("INT64"),
                RawValue::Uint(_) => Some("UINT64"),
                RawValue::Float(_) => Some("FP64"),
                RawValue::Text(_) => Some("BYTES"),
            };
            let is_wide = values.iter().any(|value| matches!(value, RawValue::Uint(_)));
            let first = values.iter().find_map(kind);
            if is_wide { "UINT64" } else { first.unwrap_or("FP64") }
        }
    }
}

fn values_of(column: &RawColumn<'_>) -> Vec<Value> {
    let of = |value: &RawValue<'_>| match value {
        RawValue::Missing => Value::Null,
        RawValue::Int(x) => json!(x),
        RawValue::Uint(x) => json!(x),
        RawValue::Float(x) => json!(x),
        RawValue::Text(text) => json!(text),
    };
    match &column.values {
        RawValues::Ints(values) => values.iter().map(|x| json!(x)).collect(),
        RawValues::Uints(values) => values.iter().map(|x| json!(x)).collect(),
        RawValues::Floats(values) => values.iter().map(|x| json!(x)).collect(),
        RawValues::Any(values) => values.iter().map(of).collect(),
    }
}
