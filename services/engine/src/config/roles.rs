//! What each layer of the backbone is, derived from the lists of the configuration.
//!
//! Source: specs/v41-architecture.md §1.2, general rule: the owner of a layer is the nearest source at or below it.

use shared::BLOCK_TOKENS;

use super::ConfigError;

/// The role of one layer of the backbone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRole {
    /// The layer's number.
    pub layer: usize,
    /// m: tokens per compressed entry; 0 for a layer that sees its window only.
    pub ratio: u32,
    /// The layer whose compressed entries and index keys this one reads; none if `ratio` is 0.
    pub kv_owner: Option<usize>,
    /// The layer whose selection this one uses; none if `ratio` is 0.
    pub index_owner: Option<usize>,
    /// Its part in the hierarchical indexer.
    pub candidates: CandidateUse,
    /// Which Engram table is applied before this layer, as an index into `EngramConfig::layers`.
    pub engram: Option<usize>,
    /// Whether the layer lies below the boundary.
    pub is_encoder: bool,
}

/// What a layer has to do with candidate blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateUse {
    /// Nothing: it selects over all visible entries, or does not select at all.
    Unrelated,
    /// It chooses the blocks, and itself selects over all visible entries.
    Source,
    /// It selects among the entries of the chosen blocks only.
    Restricted,
}

impl LayerRole {
    /// Whether the layer produces compressed entries and index keys.
    #[must_use]
    pub fn owns_kv(&self) -> bool {
        self.kv_owner == Some(self.layer)
    }

    /// Whether the layer makes a selection of its own (Full or Reindex).
    #[must_use]
    pub fn owns_index(&self) -> bool {
        self.index_owner == Some(self.layer)
    }

    /// Whether the layer chooses candidate blocks.
    #[must_use]
    pub fn is_candidate_source(&self) -> bool {
        self.candidates == CandidateUse::Source
    }

    /// Whether the layer selects among candidate blocks only.
    #[must_use]
    pub fn uses_candidates(&self) -> bool {
        self.candidates == CandidateUse::Restricted
    }
}

/// The lists of the configuration that determine the roles. All ascending and in range.
pub(super) struct RoleLists<'a> {
    pub(super) ratios: &'a [u64],
    pub(super) kv_sources: &'a [usize],
    pub(super) index_sources: &'a [usize],
    pub(super) candidate_source: Option<usize>,
    pub(super) engram_layers: &'a [usize],
}

/// The role of each of the `ratios.len()` layers, and the boundary layer.
pub(super) fn derive(lists: &RoleLists<'_>) -> Result<(Vec<LayerRole>, usize), ConfigError> {
    let boundary = boundary_layer(lists)?;
    check_sources(lists)?;
    let mut roles = Vec::with_capacity(lists.ratios.len());
    for (layer, &found) in lists.ratios.iter().enumerate() {
        let ratio = check_ratio(layer, found)?;
        let owner = |sources: &[usize]| {
            sources.iter().copied().rfind(|source| *source <= layer).filter(|_| ratio != 0)
        };
        let role = LayerRole {
            layer,
            ratio,
            kv_owner: owner(lists.kv_sources),
            index_owner: owner(lists.index_sources),
            candidates: CandidateUse::Unrelated,
            engram: lists.engram_layers.iter().position(|engram| *engram == layer),
            is_encoder: layer < boundary,
        };
        check_consumer(&role, lists)?;
        roles.push(role);
    }
    if let Some(source) = lists.candidate_source {
        mark_candidates(&mut roles, source)?;
    }
    Ok((roles, boundary))
}

/// The first layer of ratio 1. Everything global comes from layers up to it, so it is the last KV source.
fn boundary_layer(lists: &RoleLists<'_>) -> Result<usize, ConfigError> {
    let ratios = "text_config.compress_ratios";
    let Some(boundary) = lists.ratios.iter().position(|ratio| *ratio == 1) else {
        return Err(ConfigError::field(ratios, "a layer of ratio 1 (the boundary)", "none"));
    };
    if boundary == 0 {
        return Err(ConfigError::field(
            ratios,
            "at least one layer before ratio 1",
            "1 at layer 0",
        ));
    }
    if lists.kv_sources.last() != Some(&boundary) {
        return Err(ConfigError::field(
            "text_config.kv_source_layer_ids",
            format!("the boundary layer {boundary} (first of ratio 1) as the last source"),
            format!("{:?}", lists.kv_sources),
        ));
    }
    if let Some(late) = lists.engram_layers.iter().find(|layer| boundary <= **layer) {
        return Err(ConfigError::field(
            "text_config.engram_layer_ids",
            format!("layers below the boundary {boundary}"),
            late,
        ));
    }
    Ok(boundary)
}

fn check_sources(lists: &RoleLists<'_>) -> Result<(), ConfigError> {
    if let Some(source) = lists.kv_sources.iter().find(|layer| !lists.index_sources.contains(layer))
    {
        return Err(ConfigError::field(
            "text_config.index_source_layer_ids",
            format!("every KV source, {source} too"),
            format!("{:?}", lists.index_sources),
        ));
    }
    match lists.index_sources.iter().find(|layer| lists.ratios[**layer] == 0) {
        Some(layer) => Err(ConfigError::field(
            format!("text_config.compress_ratios[{layer}]"),
            "a ratio above 0, because the layer is an index source",
            0,
        )),
        None => Ok(()),
    }
}

fn check_ratio(layer: usize, found: u64) -> Result<u32, ConfigError> {
    let ratio = u32::try_from(found).ok().filter(|r| *r == 0 || BLOCK_TOKENS.is_multiple_of(*r));
    ratio.ok_or_else(|| {
        let field = format!("text_config.compress_ratios[{layer}]");
        ConfigError::field(field, format!("0 or a divisor of {BLOCK_TOKENS}"), found)
    })
}

/// A layer that reads compressed entries has an owner of the same ratio.
fn check_consumer(role: &LayerRole, lists: &RoleLists<'_>) -> Result<(), ConfigError> {
    if role.ratio == 0 {
        return Ok(());
    }
    let field = format!("text_config.compress_ratios[{}]", role.layer);
    let Some(owner) = role.kv_owner else {
        return Err(ConfigError::field(field, "0, as no KV source lies below", role.ratio));
    };
    let expected = lists.ratios[owner];
    if expected != u64::from(role.ratio) {
        let expected = format!("{expected}, the ratio of its KV source {owner}");
        return Err(ConfigError::field(field, expected, role.ratio));
    }
    Ok(())
}

fn mark_candidates(roles: &mut [LayerRole], source: usize) -> Result<(), ConfigError> {
    let field = "text_config.candidate_source_layer_id";
    if !roles[source].owns_kv() {
        return Err(ConfigError::field(field, "a KV source", source));
    }
    roles[source].candidates = CandidateUse::Source;
    for role in &mut roles[source + 1..] {
        if !role.owns_index() || role.owns_kv() {
            continue;
        }
        if role.kv_owner != Some(source) {
            let expected = format!("the KV source of every later Reindex layer ({})", role.layer);
            return Err(ConfigError::field(field, expected, source));
        }
        role.candidates = CandidateUse::Restricted;
    }
    Ok(())
}
