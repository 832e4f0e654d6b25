//! Objects, and what is asked and offered of them; the facts of a member.

use shared::{
    BlockName, Descriptor, Durability, Generation, Location, Numerics, ObjectKey, ObjectKind,
    RegionId, RequestContext, SlotIndex,
};

use super::{
    OBJECTS_MAX, WireError, bounded, bytes_16, bytes_32, context_from_wire, required,
    text_from_wire, text_to_wire, trace_to_wire, v1,
};
use crate::identity::{MemberIdentity, MemberRole};
use crate::wire::Facts;

impl From<ObjectKey> for v1::ObjectKey {
    fn from(key: ObjectKey) -> Self {
        let kind = match key.kind {
            ObjectKind::Block => v1::ObjectKind::Block,
            ObjectKind::Window => v1::ObjectKind::Window,
            ObjectKind::Media => v1::ObjectKind::Media,
        };
        Self { kind: kind.into(), name: key.name.0.to_vec() }
    }
}

impl TryFrom<v1::ObjectKey> for ObjectKey {
    type Error = WireError;

    fn try_from(message: v1::ObjectKey) -> Result<Self, WireError> {
        let kind = match v1::ObjectKind::try_from(message.kind) {
            Ok(v1::ObjectKind::Block) => ObjectKind::Block,
            Ok(v1::ObjectKind::Window) => ObjectKind::Window,
            Ok(v1::ObjectKind::Media) => ObjectKind::Media,
            Ok(v1::ObjectKind::Unspecified) | Err(_) => {
                let found = message.kind.to_string();
                return Err(WireError::Unknown { field: "key.kind", found });
            }
        };
        Ok(Self { kind, name: BlockName(bytes_16(&message.name, "key.name")?) })
    }
}

impl From<Descriptor> for v1::Descriptor {
    fn from(descriptor: Descriptor) -> Self {
        let Descriptor { key, location, bytes, checksum, exact } = descriptor;
        Self {
            key: Some(key.into()),
            region: location.region.0,
            slot: location.slot.0,
            generation: location.generation.0,
            bytes,
            checksum,
            exact,
        }
    }
}

impl TryFrom<v1::Descriptor> for Descriptor {
    type Error = WireError;

    fn try_from(message: v1::Descriptor) -> Result<Self, WireError> {
        Ok(Self {
            key: required(message.key, "descriptor.key")?.try_into()?,
            location: Location {
                region: RegionId(message.region),
                slot: SlotIndex(message.slot),
                generation: Generation(message.generation),
            },
            bytes: message.bytes,
            checksum: message.checksum,
            exact: message.exact,
        })
    }
}

pub(in crate::wire) fn locate_request_to_wire(
    context: RequestContext,
    keys: &[ObjectKey],
) -> v1::LocateRequest {
    let RequestContext { id, trace, tenant } = context;
    v1::LocateRequest {
        keys: keys.iter().copied().map(Into::into).collect(),
        id: id.0.to_be_bytes().to_vec(),
        trace: trace_to_wire(trace),
        tenant: tenant.0,
    }
}

pub(in crate::wire) fn locate_request_from_wire(
    message: v1::LocateRequest,
) -> Result<(RequestContext, Vec<ObjectKey>), WireError> {
    let context = context_from_wire(&message.id, message.trace, message.tenant)?;
    bounded(message.keys.len(), OBJECTS_MAX, "keys")?;
    let keys = message.keys.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
    Ok((context, keys))
}

pub(in crate::wire) fn offer_request_to_wire(
    context: RequestContext,
    objects: &[Descriptor],
    durability: Durability,
) -> v1::OfferRequest {
    let RequestContext { id, trace, tenant } = context;
    v1::OfferRequest {
        objects: objects.iter().copied().map(Into::into).collect(),
        id: id.0.to_be_bytes().to_vec(),
        trace: trace_to_wire(trace),
        tenant: tenant.0,
        durability: match durability {
            Durability::Memory => v1::Durability::Memory,
            Durability::Disk => v1::Durability::Disk,
        }
        .into(),
    }
}

pub(in crate::wire) fn offer_request_from_wire(
    message: v1::OfferRequest,
) -> Result<(RequestContext, Vec<Descriptor>, Durability), WireError> {
    let context = context_from_wire(&message.id, message.trace, message.tenant)?;
    bounded(message.objects.len(), OBJECTS_MAX, "objects")?;
    let objects = message.objects.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
    let durability = match v1::Durability::try_from(message.durability) {
        Ok(v1::Durability::Memory) => Durability::Memory,
        Ok(v1::Durability::Disk) => Durability::Disk,
        Ok(v1::Durability::Unspecified) | Err(_) => {
            let found = message.durability.to_string();
            return Err(WireError::Unknown { field: "durability", found });
        }
    };
    Ok((context, objects, durability))
}

impl From<&Facts> for v1::Facts {
    fn from(facts: &Facts) -> Self {
        Self {
            protocol: facts.protocol,
            model: facts.model.to_vec(),
            layout: facts.layout.to_vec(),
            numerics: text_to_wire(&facts.numerics.0),
            block_tokens: facts.block_tokens,
            tokenizer: facts.tokenizer.to_vec(),
            role: facts.member.role().as_str().to_owned(),
            name: facts.member.name().to_owned(),
            worker: Some(facts.worker.into()),
            incarnation: facts.incarnation,
        }
    }
}

impl TryFrom<v1::Facts> for Facts {
    type Error = WireError;

    fn try_from(message: v1::Facts) -> Result<Self, WireError> {
        let Some(role) = MemberRole::parse(&message.role) else {
            let found = text_to_wire(&message.role);
            return Err(WireError::Unknown { field: "facts.role", found });
        };
        let member = MemberIdentity::new(role, &message.name).map_err(|_| WireError::Range {
            field: "facts.name",
            found: text_to_wire(&message.name),
            expected: "a label of lower-case letters, digits and hyphens",
        })?;
        Ok(Self {
            protocol: message.protocol,
            model: bytes_32(&message.model, "facts.model")?,
            layout: bytes_32(&message.layout, "facts.layout")?,
            numerics: Numerics(text_from_wire(message.numerics, "facts.numerics")?),
            block_tokens: message.block_tokens,
            tokenizer: bytes_32(&message.tokenizer, "facts.tokenizer")?,
            member,
            worker: required(message.worker, "facts.worker")?.try_into()?,
            incarnation: message.incarnation,
        })
    }
}
