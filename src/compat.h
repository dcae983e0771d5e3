/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the majors of PostgreSQL, and nothing else.
 *
 * Each shim gives an older major the newer one's name.  No other file of
 * fenced_lock asks for PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_COMPAT_H
#define FENCED_LOCK_COMPAT_H

#include "fmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

/* 16 moved the varlena macros into a header of their own. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 18 lets a module tell its name and version. */
#ifndef PG_MODULE_MAGIC_EXT
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* 16 replaced the ownership check per kind of object by one for all. */
#if PG_VERSION_NUM < 160000
#define extension_ownercheck(extension, role) \
	pg_extension_ownercheck(extension, role)
#define relation_ownercheck(relation, role) \
	pg_class_ownercheck(relation, role)
#else
#define extension_ownercheck(extension, role) \
	object_ownercheck(ExtensionRelationId, extension, role)
#define relation_ownercheck(relation, role) \
	object_ownercheck(RelationRelationId, relation, role)
#endif

/* 17 speaks of process numbers where there were backend ids. */
#if PG_VERSION_NUM < 170000
#include "storage/sinvaladt.h"
#define fl_vxid_proc(vxid) BackendIdGetProc((vxid).backendId)
#define fl_proc_lxid(proc) ((proc)->lxid)
#else
#include "storage/procarray.h"
#define fl_vxid_proc(vxid) ProcNumberGetProc((vxid).procNumber)
#define fl_proc_lxid(proc) ((proc)->vxid.lxid)
#endif

/* 17 lets one ask for "this mode or a stronger one". */
#if PG_VERSION_NUM < 170000
#define fl_lock_held_by_me(tag, mode) LockHeldByMe(tag, mode)
#else
#define fl_lock_held_by_me(tag, mode) LockHeldByMe(tag, mode, false)
#endif

/* 17 lets an extension name its wait event. */
#include "utils/wait_event.h"
#if PG_VERSION_NUM < 170000
#define WaitEventExtensionNew(name) PG_WAIT_EXTENSION
#endif

/* 16 exports the look-up of a setting by its name. */
#if PG_VERSION_NUM < 160000
static inline struct config_generic *
find_option(const char *name, bool create_placeholders, bool skip_errors,
			int elevel)
{
	struct config_generic **all = get_guc_variables();

	(void) create_placeholders;
	for (int i = 0; i < GetNumConfigOptions(); i++)
	{
		if (strcmp(all[i]->name, name) == 0)
			return all[i];
	}
	if (!skip_errors)
		elog(elevel, "unrecognized configuration parameter \"%s\"", name);
	return NULL;
}
#endif

#endif							/* FENCED_LOCK_COMPAT_H */
