//! Requests. A deadline becomes the milliseconds left on the sender's clock and a moment on the receiver's.

use std::sync::Arc;
use std::time::Duration;

use shared::{DecodeRequest, Lineage, PrefillRequest, Root, Sampling, TenantTag, Timestamp};

use super::constraints::{
    constraint_from_wire, constraint_to_wire, finite, logit_bias_from_wire, logprobs_from_wire,
    token_values_to_wire,
};
use super::{
    NAMES_MAX, WireError, bytes_32, names_from_wire, names_to_wire, request_id, required,
    tokens_from_wire, tokens_to_wire, trace_from_wire, trace_to_wire, v1,
};

/// The request as a message sent at `now`. A deadline that passed has 0 ms left.
pub(in crate::wire) fn decode_request_to_wire(
    request: &DecodeRequest,
    now: Timestamp,
) -> v1::DecodeRequest {
    let left =
        |deadline: Timestamp| u64::try_from(deadline.since(now).as_millis()).unwrap_or(u64::MAX);
    v1::DecodeRequest {
        id: request.id.0.to_be_bytes().to_vec(),
        trace: trace_to_wire(request.trace),
        prompt: tokens_to_wire(&request.prompt),
        emitted: tokens_to_wire(&request.emitted),
        root: request.root.to_bytes().to_vec(),
        names: names_to_wire(&request.names),
        lineage: lineage_to_wire(request.lineage),
        sampling: Some(request.sampling.into()),
        logit_bias: token_values_to_wire(&request.logit_bias),
        logprobs: request.logprobs.map(Into::into),
        constraint: request.constraint.as_deref().map(constraint_to_wire),
        stop_ids: tokens_to_wire(&request.stop_ids),
        output_tokens_max: request.output_tokens_max,
        prefill: request.prefill.map(Into::into),
        deadline_ms: request.deadline.map(left),
        tenant: request.tenant.0,
    }
}

/// The request of a message that arrived at `now`.
pub(in crate::wire) fn decode_request_from_wire(
    message: v1::DecodeRequest,
    now: Timestamp,
) -> Result<DecodeRequest, WireError> {
    let after = |left| now.after(Duration::from_millis(left));
    Ok(DecodeRequest {
        id: request_id(&message.id, "id")?,
        trace: trace_from_wire(message.trace)?,
        tenant: TenantTag(message.tenant),
        prompt: tokens_from_wire(&message.prompt, "prompt")?,
        emitted: tokens_from_wire(&message.emitted, "emitted")?,
        root: Root::from_bytes(bytes_32(&message.root, "root")?),
        names: names_from_wire(&message.names, NAMES_MAX, "names")?,
        lineage: lineage_from_wire(message.lineage)?,
        sampling: required(message.sampling, "sampling")?.try_into()?,
        logit_bias: logit_bias_from_wire(message.logit_bias)?,
        logprobs: message.logprobs.map(logprobs_from_wire).transpose()?,
        constraint: message.constraint.map(constraint_from_wire).transpose()?.map(Arc::new),
        stop_ids: tokens_from_wire(&message.stop_ids, "stop_ids")?,
        output_tokens_max: message.output_tokens_max,
        prefill: message.prefill.map(TryInto::try_into).transpose()?,
        deadline: message.deadline_ms.map(after),
    })
}

pub(in crate::wire) fn prefill_request_to_wire(request: &PrefillRequest) -> v1::PrefillRequest {
    v1::PrefillRequest {
        id: request.id.0.to_be_bytes().to_vec(),
        trace: trace_to_wire(request.trace),
        ids: tokens_to_wire(&request.ids),
        root: request.root.to_bytes().to_vec(),
        names: names_to_wire(&request.names),
        lineage: lineage_to_wire(request.lineage),
        from: request.from,
        to: request.to,
        tenant: request.tenant.0,
    }
}

pub(in crate::wire) fn prefill_request_from_wire(
    message: v1::PrefillRequest,
) -> Result<PrefillRequest, WireError> {
    Ok(PrefillRequest {
        id: request_id(&message.id, "id")?,
        trace: trace_from_wire(message.trace)?,
        tenant: TenantTag(message.tenant),
        ids: tokens_from_wire(&message.ids, "ids")?,
        root: Root::from_bytes(bytes_32(&message.root, "root")?),
        names: names_from_wire(&message.names, NAMES_MAX, "names")?,
        lineage: lineage_from_wire(message.lineage)?,
        from: message.from,
        to: message.to,
    })
}

fn lineage_to_wire(lineage: Lineage) -> i32 {
    match lineage {
        Lineage::Exact => v1::Lineage::Exact.into(),
        Lineage::Bounded => v1::Lineage::Bounded.into(),
    }
}

fn lineage_from_wire(value: i32) -> Result<Lineage, WireError> {
    match v1::Lineage::try_from(value) {
        Ok(v1::Lineage::Exact) => Ok(Lineage::Exact),
        Ok(v1::Lineage::Bounded) => Ok(Lineage::Bounded),
        Ok(v1::Lineage::Unspecified) | Err(_) => {
            Err(WireError::Unknown { field: "lineage", found: value.to_string() })
        }
    }
}

impl From<Sampling> for v1::Sampling {
    fn from(sampling: Sampling) -> Self {
        let Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            frequency_penalty,
            presence_penalty,
            seed,
        } = sampling;
        Self { temperature, top_p, seed, top_k, min_p, frequency_penalty, presence_penalty }
    }
}

impl TryFrom<v1::Sampling> for Sampling {
    type Error = WireError;

    fn try_from(message: v1::Sampling) -> Result<Self, WireError> {
        let v1::Sampling {
            temperature,
            top_p,
            seed,
            top_k,
            min_p,
            frequency_penalty,
            presence_penalty,
        } = message;
        for (field, value) in [
            ("sampling.temperature", temperature),
            ("sampling.top_p", top_p),
            ("sampling.min_p", min_p),
            ("sampling.frequency_penalty", frequency_penalty),
            ("sampling.presence_penalty", presence_penalty),
        ] {
            finite(value, field)?;
        }
        Ok(Self { temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, seed })
    }
}
