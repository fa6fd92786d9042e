package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every object in this package.
var GroupVersion = schema.GroupVersion{Group: "fanfare.io", Version: "v1alpha1"}

var schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the objects of this package to a scheme.
var AddToScheme = schemeBuilder.AddToScheme

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&AddressClaim{}, &AddressClaimList{},
		&AddressPool{}, &AddressPoolList{},
		&BGPAdvertisement{}, &BGPAdvertisementList{},
		&BGPPeer{}, &BGPPeerList{},
		&L2Advertisement{}, &L2AdvertisementList{},
		&SpeakerStatus{}, &SpeakerStatusList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
