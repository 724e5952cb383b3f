//! The group of calls that a path belongs to.

use crate::network::Api;

/// Returns the group of a call, or `None` for a service that the server does not have.
pub(super) fn api(path: &str) -> Option<Api> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    Some(match service {
        "inference.GRPCInferenceService" => match method {
            "ServerLive" | "ServerReady" | "ModelReady" => Api::Health,
            "ModelInfer" | "ModelStreamInfer" => Api::Infer,
            _ if method.starts_with("Repository") => Api::Control,
            // Other calls change the server, or describe it.
            _ if method.ends_with("Register") || method.ends_with("Unregister") => Api::Control,
            "TraceSetting" | "LogSettings" => Api::Control,
            _ => Api::Meta,
        },
        "tensorflow.serving.PredictionService" => match method {
            "GetModelMetadata" => Api::Meta,
            _ => Api::Infer,
        },
        "tensorflow.serving.ModelService" => match method {
            "GetModelStatus" => Api::Meta,
            _ => Api::Control,
        },
        "zillion.v1.RetrievalService" => Api::Infer,
        "grpc.health.v1.Health" => Api::Health,
        "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection" => {
            Api::Meta
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_belongs_to_a_group() {
        for (path, expected) in [
            ("/inference.GRPCInferenceService/ModelInfer", Some(Api::Infer)),
            ("/inference.GRPCInferenceService/ServerReady", Some(Api::Health)),
            ("/inference.GRPCInferenceService/RepositoryModelLoad", Some(Api::Control)),
            ("/inference.GRPCInferenceService/SystemSharedMemoryRegister", Some(Api::Control)),
            ("/inference.GRPCInferenceService/ModelConfig", Some(Api::Meta)),
            ("/tensorflow.serving.PredictionService/Predict", Some(Api::Infer)),
            ("/tensorflow.serving.PredictionService/GetModelMetadata", Some(Api::Meta)),
            ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", Some(Api::Control)),
            ("/zillion.v1.RetrievalService/Retrieve", Some(Api::Infer)),
            ("/grpc.health.v1.Health/Watch", Some(Api::Health)),
            ("/other.Service/Call", None),
            ("inference.GRPCInferenceService/ModelInfer", None),
        ] {
            assert_eq!(api(path), expected, "{path}");
        }
    }
}
