//! The services of TensorFlow Serving except `Predict`: metadata, status, and refusals of the calls
//! that are not supported.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use tonic::{Request, Response, Status, async_trait};
use zillion_access::Role;
use zillion_registry::VersionId;
use zillion_scorer::Servable;

use super::predict::{SIGNATURE, check_signature, selector, shape_of, spec};
use super::server::tensorflow::serving::model_service_server::ModelService;
use super::server::tensorflow::serving::prediction_service_server::PredictionService;
use crate::access::check_model;
use crate::describe::{self, Described};
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::proto::google::protobuf::Any;
use crate::proto::tensorflow::serving::model_version_status::State;
use crate::proto::tensorflow::serving::{
    ClassificationRequest, ClassificationResponse, GetModelMetadataRequest,
    GetModelMetadataResponse, GetModelStatusRequest, GetModelStatusResponse, ModelVersionStatus,
    MultiInferenceRequest, MultiInferenceResponse, RegressionRequest, RegressionResponse,
    ReloadConfigRequest, ReloadConfigResponse, SignatureDefMap, StatusProto,
};
use crate::proto::tensorflow::tensor_info::Encoding;
use crate::proto::tensorflow::{DataType, SignatureDef, TensorInfo, error};
use crate::tensor::Datatype;

/// The name of the only kind of metadata that a client can request.
const FIELD: &str = "signature_def";

/// The services of TensorFlow Serving for a domain.
#[derive(Clone, Debug)]
pub(super) struct Tf(pub(super) Arc<Domain>);

#[async_trait]
impl PredictionService for Tf {
    async fn classify(
        &self,
        _: Request<ClassificationRequest>,
    ) -> Result<Response<ClassificationResponse>, Status> {
        Err(Status::unimplemented(
            "Classify is not supported; call Predict, whose output is the probability of each row",
        ))
    }

    async fn regress(
        &self,
        _: Request<RegressionRequest>,
    ) -> Result<Response<RegressionResponse>, Status> {
        Err(Status::unimplemented(
            "Regress is not supported, because rows are sent as tensors and not as Examples; call Predict",
        ))
    }

    async fn multi_inference(
        &self,
        _: Request<MultiInferenceRequest>,
    ) -> Result<Response<MultiInferenceResponse>, Status> {
        Err(Status::unimplemented(
            "MultiInference is not supported, because several tasks are several outputs; call Predict with an \
             `output_filter`",
        ))
    }

    async fn get_model_metadata(
        &self,
        request: Request<GetModelMetadataRequest>,
    ) -> Result<Response<GetModelMetadataResponse>, Status> {
        let model = request.get_ref().model_spec.as_ref().map_or("", |spec| spec.name.as_str());
        check_model(&self.0, request.extensions(), Role::Read, model)?;
        Ok(Response::new(metadata(&self.0, request.get_ref())?))
    }
}

#[async_trait]
impl ModelService for Tf {
    async fn get_model_status(
        &self,
        request: Request<GetModelStatusRequest>,
    ) -> Result<Response<GetModelStatusResponse>, Status> {
        let model = request.get_ref().model_spec.as_ref().map_or("", |spec| spec.name.as_str());
        check_model(&self.0, request.extensions(), Role::Read, model)?;
        Ok(Response::new(versions(&self.0, request.get_ref())?))
    }

    async fn handle_reload_config_request(
        &self,
        _: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        Err(Status::unimplemented(
            "reloading a configuration is not supported; choose the version with `zillion model \
             promote`, and add a model with RepositoryModelLoad of inference.GRPCInferenceService",
        ))
    }
}

fn metadata(
    domain: &Domain,
    request: &GetModelMetadataRequest,
) -> Result<GetModelMetadataResponse> {
    let fields = &request.metadata_field;
    if fields.is_empty() || fields.iter().any(|field| field != FIELD) {
        return Err(ServeError::Malformed(format!(
            "unknown `metadata_field` {fields:?}; send `{FIELD}`, the only kind of metadata"
        )));
    }
    let asked = request.model_spec.clone().unwrap_or_default();
    check_signature(&asked)?;
    let host = domain.host(&asked.name)?;
    let servable = host.resolve(&selector(&asked)?)?.servable;
    let signatures = BTreeMap::from([(SIGNATURE.to_owned(), signature(&servable))]);
    let value = SignatureDefMap { signature_def: signatures }.encode_to_vec().into();
    let type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap".to_owned();
    let metadata = BTreeMap::from([(FIELD.to_owned(), Any { type_url, value })]);
    // The specification in metadata names no signature, because it lists all of them.
    let mut of = spec(host.name(), servable.version());
    of.signature_name.clear();
    Ok(GetModelMetadataResponse { model_spec: Some(of), metadata })
}

fn signature(servable: &Servable) -> SignatureDef {
    let info = |described: Described| {
        let dtype = match described.datatype {
            Datatype::Int64 => DataType::DtInt64,
            Datatype::Uint64 => DataType::DtUint64,
            Datatype::Bytes => DataType::DtString,
            _ => DataType::DtFloat,
        };
        let info = TensorInfo {
            encoding: Some(Encoding::Name(described.name.clone())),
            dtype: dtype.into(),
            tensor_shape: Some(shape_of(described.shape())),
        };
        (described.name, info)
    };
    SignatureDef {
        inputs: describe::inputs(servable).into_iter().map(info).collect(),
        outputs: describe::outputs(servable).into_iter().map(info).collect(),
        method_name: "tensorflow/serving/predict".to_owned(),
        defaults: BTreeMap::new(),
    }
}

fn versions(domain: &Domain, request: &GetModelStatusRequest) -> Result<GetModelStatusResponse> {
    let asked = request.model_spec.clone().unwrap_or_default();
    let host = domain.host(&asked.name)?;
    let versions: Vec<VersionId> = match selector(&asked)? {
        Selector::Default => host.open().versions.keys().rev().copied().collect(),
        one => vec![host.resolve(&one)?.servable.version()],
    };
    let available = |version: VersionId| ModelVersionStatus {
        version: i64::try_from(version.0).unwrap_or(i64::MAX),
        state: State::Available.into(),
        status: Some(StatusProto {
            error_code: error::Code::Ok.into(),
            error_message: String::new(),
        }),
    };
    let model_version_status = versions.into_iter().map(available).collect();
    Ok(GetModelStatusResponse { model_version_status })
}
