//! Tests of the reader of the call `Retrieve`, with generated messages and with damaged ones.

use proptest::prelude::*;
use prost::Message;
use zillion_feature::RawValues;
use zillion_registry::VersionId;
use zillion_rows::layer::Unthrottled;
use zillion_scorer::Found;

use super::*;
use crate::host::Selector;
use crate::proto::inference::model_infer_request::InferInputTensor;
use crate::proto::inference::{InferTensorContents, ModelInferRequest};
use crate::proto::zillion::v1::RetrieveRequest as Proto;

fn user(rows: i64) -> ModelInferRequest {
    let contents =
        InferTensorContents { int64_contents: vec![7; rows as usize], ..Default::default() };
    ModelInferRequest {
        model_name: "towers".to_owned(),
        model_version: "3".to_owned(),
        id: "a".to_owned(),
        inputs: vec![InferInputTensor {
            name: "user".to_owned(),
            datatype: "INT64".to_owned(),
            shape: vec![rows],
            contents: Some(contents),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn request() -> Proto {
    Proto {
        user: Some(user(1)),
        k: Some(3),
        only: Some(ItemIds { ints: vec![5, -6], ..Default::default() }),
        exclude: Some(ItemIds { texts: vec!["a".to_owned()], ..Default::default() }),
        exact: Some(false),
    }
}

fn refused(request: &Proto) -> String {
    let message = request.encode_to_vec();
    parse(&message, &Limits::default(), None).unwrap_err().to_string()
}

#[test]
fn a_message_has_the_inputs_of_a_user_and_lists_of_ids() {
    let message = Bytes::from(request().encode_to_vec());
    let (id, read) = parse(&message, &Limits::default(), None).unwrap();
    assert_eq!((id, read.k, read.exact), ("a", 3, Some(false)));
    assert_eq!(read.columns["user"].values, RawValues::Ints(vec![7]));
    assert_eq!(read.only, Some(vec![RawValue::Int(5), RawValue::Int(-6)]));
    assert_eq!(read.exclude, vec![RawValue::Text("a".into())]);
    let target = Retrieve.target(&message).unwrap();
    assert_eq!(target.model, "towers");
    assert_eq!(target.selector, Selector::Version(VersionId(3)));
    let bare = Proto { user: Some(user(1)), ..Default::default() }.encode_to_vec();
    let (_, read) = parse(&bare, &Limits::default(), None).unwrap();
    assert_eq!((read.k, read.only, read.exact), (10, None, None));
    // An empty list allows no item, and an absent one allows all.
    let none = Proto { only: Some(ItemIds::default()), ..request() }.encode_to_vec();
    assert_eq!(parse(&none, &Limits::default(), None).unwrap().1.only, Some(Vec::new()));
}

#[test]
fn wrong_messages_are_refused_by_name() {
    let both = ItemIds { ints: vec![1], texts: vec!["a".to_owned()], ..Default::default() };
    let mut named = user(1);
    named.outputs.push(Default::default());
    for (request, expected) in [
        (Proto { user: None, ..request() }, "has no `user`"),
        (Proto { user: Some(user(2)), ..request() }, "have 2 rows; send those of one user"),
        (Proto { user: Some(named), ..request() }, "remove `outputs`"),
        (Proto { k: Some(0), ..request() }, "`k` is 0; send an integer of at least 1"),
        (Proto { only: Some(both.clone()), ..request() }, "`only` has ids in several lists"),
        (Proto { exclude: Some(both), ..request() }, "`exclude` has ids in several lists"),
        (Proto { user: Some(Default::default()), ..request() }, "has no `inputs`"),
    ] {
        let said = refused(&request);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let twice = [request().encode_to_vec(), request().encode_to_vec()].concat();
    let said = parse(&twice, &Limits::default(), None).unwrap_err().to_string();
    assert!(said.contains("`user` appears twice"), "{said}");
    // Ids and values are counted together.
    let message = request().encode_to_vec();
    for (values, fits) in [(4, true), (3, false), (2, false), (0, false)] {
        let limits = Limits { values, ..Limits::default() };
        let outcome = parse(&message, &limits, None);
        assert_eq!(outcome.is_ok(), fits, "{values}");
        assert!(fits || matches!(outcome, Err(ServeError::TooLarge { .. })), "{values}");
    }
}

#[test]
fn an_answer_has_the_ids_of_the_catalogue() {
    let ids = zillion_scorer::ItemIds::Uints(vec![4, u64::MAX]);
    let items = ItemVectors::new(ids, vec![0.5, 1.0], 1, 1.0, Vec::new(), &mut Unthrottled);
    let found = vec![Found { item: 1, score: 0.25 }, Found { item: 0, score: 0.125 }];
    let retrieval = Retrieval { version: VersionId(3), found, unknown_ids: 2, is_exact: true };
    let answer = response("towers", "a", &items.unwrap(), &retrieval);
    assert_eq!(answer.items.unwrap().uints, [u64::MAX, 4]);
    assert_eq!(answer.scores, [0.25, 0.125]);
    assert_eq!((answer.model_version.as_str(), answer.unknown_ids, answer.exact), ("3", 2, true));
}

proptest! {
    #[test]
    fn damaged_messages_are_no_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut message = request().encode_to_vec();
        let at = at.index(message.len());
        message[at] = byte;
        let _ = accepts(&Bytes::copy_from_slice(&message));
        message.truncate(at);
        let _ = accepts(&Bytes::from(message));
    }
}
