//! The service of Triton except `ModelInfer`: health, metadata, statistics, the repository, and
//! refusals of the calls that are not supported.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::codegen::tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming, async_trait};
use zillion_access::{Models, Principal, Role};
use zillion_registry::VersionId;
use zillion_scorer::Servable;

use super::infer::read_selector;
use super::server::inference::grpc_inference_service_server::GrpcInferenceService;
use crate::access::{Actor, check_model};
use crate::describe::{self, Described, EXTENSIONS};
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::{Host, Resolved, Selector};
use crate::proto::inference::model_metadata_response::TensorMetadata;
use crate::proto::inference::model_version_policy::{PolicyChoice, Specific};
use crate::proto::inference::repository_index_response::ModelIndex;
use crate::proto::inference::*;
use crate::repository::{Indexed, ModelState};
use crate::statistics::{Total, Totals};
use crate::tensor::Datatype;

/// The name of the server and of its platform.
const NAME: &str = "zillion";

const NO_SHARED_MEMORY: &str =
    "shared memory is not supported; send tensors in `raw_input_contents` of ModelInfer";

/// The service of Triton for a domain.
#[derive(Clone, Debug)]
pub(super) struct V2(pub(super) Arc<Domain>);

/// The result of a call: its response, or the status of its failure.
type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl GrpcInferenceService for V2 {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.is_ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        // An unknown model is not ready; only an invalid version is an error.
        let selector = read_selector(&version)?;
        let ready = self.0.host(&name).and_then(|host| host.resolve(&selector)).is_ok();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(ServerMetadataResponse {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Answer<ModelMetadataResponse> {
        check_model(&self.0, request.extensions(), Role::Read, &request.get_ref().name)?;
        let ModelMetadataRequest { name, version } = request.into_inner();
        let version = self.model(&name, &version)?;
        Ok(Response::new(metadata(&version.host, &version.servable)))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Answer<ModelConfigResponse> {
        check_model(&self.0, request.extensions(), Role::Read, &request.get_ref().name)?;
        let ModelConfigRequest { name, version } = request.into_inner();
        let version = self.model(&name, &version)?;
        let config = Some(config(&version.host, &version.servable));
        Ok(Response::new(ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Answer<ModelStatisticsResponse> {
        let name = &request.get_ref().name;
        // A call without a name asks for all models, and gets those of the caller.
        if !name.is_empty() {
            check_model(&self.0, request.extensions(), Role::Read, name)?;
        }
        let models = &caller(request.extensions())?.models;
        Ok(Response::new(self.statistics(request.get_ref(), models)?))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        let caller = caller(request.extensions())?;
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        check_repository(&repository_name)?;
        let models = self.0.index_for_client().await?;
        let models = models.into_iter().filter(|m| caller.models.contains(&m.name));
        let models = models.filter(|m| !ready || m.state == ModelState::Ready);
        Ok(Response::new(RepositoryIndexResponse { models: models.map(to_index).collect() }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let actor = Actor::read(request.extensions())?;
        check_model(&self.0, request.extensions(), Role::Operate, &request.get_ref().model_name)?;
        let request = request.into_inner();
        check_repository(&request.repository_name)?;
        if let Some(name) = request.parameters.keys().next() {
            let name: String = name.chars().take(100).collect();
            return Err(Status::from(ServeError::Malformed(format!(
                "parameter `{name}` is not supported, because a model is loaded as it was \
                 published; remove it"
            ))));
        }
        self.0.load_for_client(&actor, &request.model_name).await?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        let actor = Actor::read(request.extensions())?;
        check_model(&self.0, request.extensions(), Role::Operate, &request.get_ref().model_name)?;
        let request = request.into_inner();
        check_repository(&request.repository_name)?;
        // No model depends on another one, so that this parameter makes no difference.
        if let Some(name) = request.parameters.keys().find(|name| *name != "unload_dependents") {
            let name: String = name.chars().take(100).collect();
            return Err(Status::from(ServeError::Malformed(format!(
                "unknown parameter `{name}`; remove it, because an unload request has only \
                 `unload_dependents`"
            ))));
        }
        self.0.unload_for_client(&actor, &request.model_name).await?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    type ModelStreamInferStream = Empty<Result<ModelStreamInferResponse, Status>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        // The call is refused after the first request, because a client whose call ends while it
        // sends does not always read the reason.
        let mut requests = request.into_inner();
        let first = tokio::time::timeout(self.0.limits().body_time, requests.message());
        let _ = first.await;
        Err(Status::unimplemented(
            "streaming is not supported; call ModelInfer, with several calls at the same time if necessary",
        ))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answer<SystemSharedMemoryStatusResponse> {
        check_region(&request.get_ref().name)?;
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions: BTreeMap::new() }))
    }

    async fn system_shared_memory_register(
        &self,
        _: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answer<SystemSharedMemoryRegisterResponse> {
        Err(Status::unimplemented(NO_SHARED_MEMORY))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<SystemSharedMemoryUnregisterResponse> {
        // There are no regions, so that all of them are unregistered.
        check_region(&request.get_ref().name)?;
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> Answer<CudaSharedMemoryStatusResponse> {
        check_region(&request.get_ref().name)?;
        Ok(Response::new(CudaSharedMemoryStatusResponse { regions: BTreeMap::new() }))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Answer<CudaSharedMemoryRegisterResponse> {
        Err(Status::unimplemented(NO_SHARED_MEMORY))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<CudaSharedMemoryUnregisterResponse> {
        check_region(&request.get_ref().name)?;
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(
        &self,
        request: Request<TraceSettingRequest>,
    ) -> Answer<TraceSettingResponse> {
        if request.get_ref().settings.is_empty() {
            return Ok(Response::new(TraceSettingResponse { settings: BTreeMap::new() }));
        }
        Err(Status::unimplemented(
            "clients cannot configure traces; configure them where the server is started",
        ))
    }

    async fn log_settings(
        &self,
        request: Request<LogSettingsRequest>,
    ) -> Answer<LogSettingsResponse> {
        if request.get_ref().settings.is_empty() {
            return Ok(Response::new(LogSettingsResponse { settings: BTreeMap::new() }));
        }
        Err(Status::unimplemented(
            "clients cannot configure the log; configure it where the server is started",
        ))
    }
}

/// Returns the principal that a guard left in the extensions of a request.
fn caller(extensions: &tonic::Extensions) -> Result<Arc<Principal>> {
    let unguarded = || ServeError::Internal("a request passed no guard".to_owned());
    extensions.get::<Arc<Principal>>().cloned().ok_or_else(unguarded)
}

impl V2 {
    fn model(&self, name: &str, version: &str) -> Result<Resolved> {
        self.0.host(name)?.resolve(&read_selector(version)?)
    }

    fn statistics(
        &self,
        request: &ModelStatisticsRequest,
        seen: &Models,
    ) -> Result<ModelStatisticsResponse> {
        let hosts = match request.name.as_str() {
            "" => self.0.hosts().into_iter().filter(|host| seen.contains(host.name())).collect(),
            name => vec![self.0.host(name)?],
        };
        let mut model_stats = Vec::new();
        for host in hosts {
            let one = match read_selector(&request.version)? {
                Selector::Default => None,
                selector => Some(host.resolve(&selector)?.servable.version()),
            };
            let open = host.open();
            let wanted = open.statistics.iter().filter(|(v, _)| one.is_none_or(|one| one == **v));
            let of = |(&version, statistics): (&VersionId, &Arc<_>)| {
                to_statistics(host.name(), version, &crate::VersionStatistics::totals(statistics))
            };
            model_stats.extend(wanted.map(of));
        }
        Ok(ModelStatisticsResponse { model_stats })
    }
}

fn metadata(host: &Host, servable: &Servable) -> ModelMetadataResponse {
    let tensor = |described: Described| TensorMetadata {
        shape: described.shape(),
        datatype: described.datatype.name().to_owned(),
        name: described.name,
    };
    ModelMetadataResponse {
        name: host.name().to_owned(),
        versions: host.open().versions.keys().map(ToString::to_string).collect(),
        platform: NAME.to_owned(),
        inputs: describe::inputs(servable).into_iter().map(tensor).collect(),
        outputs: describe::outputs(servable).into_iter().map(tensor).collect(),
    }
}

fn config(host: &Host, servable: &Servable) -> ModelConfig {
    let data_type = |datatype: Datatype| {
        let data_type = match datatype {
            Datatype::Int64 => DataType::TypeInt64,
            Datatype::Uint64 => DataType::TypeUint64,
            Datatype::Bytes => DataType::TypeString,
            _ => DataType::TypeFp32,
        };
        data_type.into()
    };
    let input = |described: Described| ModelInput {
        data_type: data_type(described.datatype),
        name: described.name,
        dims: vec![-1],
        optional: described.is_optional,
        ..ModelInput::default()
    };
    let output = |described: Described| ModelOutput {
        data_type: data_type(described.datatype),
        dims: described.shape(),
        name: described.name,
        ..ModelOutput::default()
    };
    let number = |version: &VersionId| i64::try_from(version.0).unwrap_or(i64::MAX);
    let versions = host.open().versions.keys().map(number).collect();
    ModelConfig {
        name: host.name().to_owned(),
        platform: NAME.to_owned(),
        backend: NAME.to_owned(),
        version_policy: Some(ModelVersionPolicy {
            policy_choice: Some(PolicyChoice::Specific(Specific { versions })),
        }),
        // Rows are the first dimension of every tensor, and a batch is never made of several
        // requests.
        max_batch_size: 0,
        input: describe::inputs(servable).into_iter().map(input).collect(),
        output: describe::outputs(servable).into_iter().map(output).collect(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: false }),
        ..ModelConfig::default()
    }
}

fn to_statistics(model: &str, version: VersionId, totals: &Totals) -> ModelStatistics {
    let duration = |total: Total| Some(StatisticDuration { count: total.count, ns: total.nanos });
    ModelStatistics {
        name: model.to_owned(),
        version: version.to_string(),
        last_inference: totals.last_inference_ms,
        inference_count: totals.inference_count,
        execution_count: totals.execution_count,
        inference_stats: Some(InferStatistics {
            success: duration(totals.success),
            fail: duration(totals.fail),
            queue: duration(totals.queue),
            compute_input: duration(totals.compute_input),
            compute_infer: duration(totals.compute_infer),
            compute_output: duration(totals.compute_output),
            cache_hit: duration(Total::default()),
            cache_miss: duration(Total::default()),
        }),
        ..ModelStatistics::default()
    }
}

fn to_index(model: Indexed) -> ModelIndex {
    ModelIndex {
        name: model.name,
        version: model.version.map_or_else(String::new, |version| version.to_string()),
        state: model.state.name().to_owned(),
        reason: model.reason,
    }
}

fn check_repository(name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    let name: String = name.chars().take(100).collect();
    Err(ServeError::Malformed(format!(
        "unknown `repository_name` `{name}`; leave it empty, because the registry is the only \
         repository of a server"
    )))
}

fn check_region(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    let name: String = name.chars().take(100).collect();
    Err(Status::not_found(format!(
        "unknown region `{name}`, because shared memory is not supported; send tensors in the \
         message"
    )))
}

#[cfg(test)]
mod tests {
    use zillion_device::{Files, SystemClock};
    use zillion_registry::Registry;

    use super::*;
    use crate::config::{Follow, ServeConfig};

    #[test]
    fn a_caller_sees_only_its_own_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = folder.path().join("registry").display().to_string();
        let clock = Arc::new(SystemClock::new());
        let registry = Registry::create(&url, Files::new(), clock).expect("a registry");
        let config = ServeConfig {
            models: ["a", "b"].map(|name| (name.to_owned(), Follow::Latest)).into(),
            cache: folder.path().join("cache"),
            ..ServeConfig::default()
        };
        let metrics = prometheus::Registry::new();
        let domain = Domain::start(&config, &registry, &Files::new(), &metrics).expect("a domain");
        let service = V2(Arc::new(domain));
        let limited = Models::Only(["a".to_owned()].into());
        let principal = Arc::new(Principal { models: limited, ..Principal::anonymous() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut request = Request::new(RepositoryIndexRequest::default());
            request.extensions_mut().insert(principal.clone());
            let index = service.repository_index(request).await.expect("an index").into_inner();
            let names: Vec<&str> = index.models.iter().map(|model| model.name.as_str()).collect();
            assert_eq!(names, ["a"]);
            // The statistics of all models are those of the caller's models.
            let mut request = Request::new(ModelStatisticsRequest::default());
            request.extensions_mut().insert(principal);
            assert!(service.model_statistics(request).await.is_ok());
        });
    }
}
