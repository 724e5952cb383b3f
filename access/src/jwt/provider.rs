//! The connection of `jsonwebtoken` to *ring*, which verifies the signatures. TLS and object stores
//! use *ring* too.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, Result};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as ring_signature;
use ring::signature::{RsaParameters, UnparsedPublicKey, VerificationAlgorithm};
use signature::Verifier;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: refuse_to_sign,
    verifier_factory: create_verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes *ring* the cryptography provider of `jsonwebtoken` in this process. Further calls have no
/// effect.
pub(super) fn install() {
    // The only possible error is that a provider is already installed.
    let _ = PROVIDER.install_default();
}

/// Returns an error, because a server only verifies tokens and never signs one.
fn refuse_to_sign(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(Error::from(ErrorKind::UnsupportedAlgorithm))
}

fn create_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if !key.family().algorithms().contains(algorithm) {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

/// A verifier with one public key and the algorithm of one token.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl RingVerifier {
    fn is_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let rsa = |parameters: &'static RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let key = ring_signature::RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signature).is_ok()
            }
            DecodingKeyKind::SecretOrDer(_) => false,
        };
        let point = |algorithm: &'static dyn VerificationAlgorithm| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(key) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()
            }
            DecodingKeyKind::RsaModulusExponent { .. } => false,
        };
        match self.algorithm {
            Algorithm::RS256 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => point(&ring_signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => point(&ring_signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => point(&ring_signature::ED25519),
            _ => false,
        }
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(
        &self,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> std::result::Result<(), signature::Error> {
        match self.is_signed(message, signature) {
            true => Ok(()),
            false => Err(signature::Error::new()),
        }
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
